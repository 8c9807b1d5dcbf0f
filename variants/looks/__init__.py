"""Looking at requests' data in a process of its own, and the files it reads."""
