"""Compiled products and blocks for `runtime=packed`."""
