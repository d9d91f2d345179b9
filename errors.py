"""One tree of errors. A message is one sentence:
``where: expected X, got Y (what to do, or what is known)``.
"""

from __future__ import annotations


class SglkError(Exception):
    """Anything the user can act on; the command line prints it without a traceback."""


class FrontendError(SglkError):
    """A model could not be read or captured."""


class VerifyError(SglkError):
    """A graph or program breaks its own rules."""


class PassError(SglkError):
    """A pass could not do what its options ask for."""


class LoweringError(SglkError):
    """A target has no way to run an op or build a kernel."""


class ArtifactError(SglkError):
    """An artifact is damaged, of another version, or does not fit this machine."""


class DeviceError(SglkError):
    """A device refused work: memory, missing feature, failed launch."""


class RequestError(SglkError):
    """A request to the runtime is invalid; no other request is affected."""
