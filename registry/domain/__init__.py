"""Value types that every component shares: models, pods, profiles, reservations, views."""
