package storage

import "context"

func (s *Store) admit(ctx context.Context, c *call) error { return nil }
func (s *Store) count(window []*call)                     {}
func (s *Store) startKeeper(ctx context.Context) error    { return nil }
func (s *Store) stopKeeper()                              {}
func (s *Store) restoreMetadata() error                   { return nil }
func (s *Store) keepMetadata() error                      { return nil }
