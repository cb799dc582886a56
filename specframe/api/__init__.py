"""Tasks called from Python: what a notebook wants of benchmark, certify, report and sweeps."""
