"""Storage systems that models come from, and the download of files from them."""
