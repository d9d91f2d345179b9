"""Rows of operator tables that any chip with Triton kernels may take: see the README."""
