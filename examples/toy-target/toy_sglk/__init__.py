"""A target for sglk whose kernels are NumPy functions."""
