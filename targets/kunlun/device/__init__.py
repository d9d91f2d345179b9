"""The run-time face of the Kunlun target: drives libxpurt, the vendor's or the emulator's.

Imports only NumPy, the standard library and the other run-time faces.
"""
