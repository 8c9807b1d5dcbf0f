"""`pilotlight report`: runs compared in one HTML page, with a PNG per plot."""
