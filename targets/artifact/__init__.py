"""The file a compile leaves and a device loads: container, manifest, programs, weights."""

from .program import Arg, Bucket, Buffer, Call, Program

__all__ = ["Arg", "Bucket", "Buffer", "Call", "Program"]
