"""HTTP gateway: authentication, model-aware routing, admission queue and dispatch to pods."""
