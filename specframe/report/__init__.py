"""The HTML report: runs read from their folders, compared, explained and drawn in one file."""
