package main

import (
	"context"
	"log/slog"

	"github.com/holdfast-edge/holdfast/configs"
	"github.com/holdfast-edge/holdfast/leaf"
)

// ensureAssets gives local applications what the configuration declares for them, and returns what could not be done, in words. Nothing of it is a
// reason not to capture.
func ensureAssets(ctx context.Context, server *leaf.Server, cfg configs.Config, allowLoss bool, log *slog.Logger) []string {
	apps := cfg.Apps
	apps.MaxFile = cfg.AppsRoom()
	var failed []leaf.AssetChange
	// Making a stream anew takes its consumers away: the second round brings them back.
	for range 2 {
		changes, err := server.PlanAssets(ctx, apps, cfg.JetStream)
		if err == nil && len(changes) > 0 {
			failed, err = server.ApplyAssets(ctx, changes, allowLoss)
		}
		if err != nil {
			log.Error("what is declared below jetstream cannot be made", "err", err)
			return []string{err.Error()}
		}
		if len(changes) == 0 {
			return nil
		}
		if len(failed) > 0 {
			break
		}
	}
	var texts []string
	for _, c := range failed {
		texts = append(texts, c.String())
		log.Error("jetstream asset is not as declared", "action", c.Action, "kind", c.Kind, "name", c.Name, "loss", c.Loss, "err", c.Error)
	}
	return texts
}
