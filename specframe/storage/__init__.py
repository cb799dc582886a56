"""Files on the disk: the cache folder, and files of JSON lines that survive a kill."""
