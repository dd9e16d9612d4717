package main

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestStopDoesNotWaitForASourceThatHangs: what does not end in time is left behind, and what does is waited for.
func TestStopDoesNotWaitForASourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		deadline, cancel := context.WithTimeout(t.Context(), stopTimeout)
		defer cancel()
		var quick, hung sync.WaitGroup
		release := make(chan struct{})
		quick.Go(func() { <-time.After(time.Second) })
		hung.Go(func() { <-release })
		if !waitWithin(deadline, &quick) || time.Since(began) != time.Second {
			t.Errorf("one that ends in a second was not waited for, or for %v", time.Since(began))
		}
		if waitWithin(deadline, &hung) || time.Since(began) != stopTimeout {
			t.Errorf("one that hangs was waited for until %v", time.Since(began))
		}
		close(release)
		hung.Wait()
	})
}
