"""What the web console and traces cost a gateway, and a browser that stays open."""
