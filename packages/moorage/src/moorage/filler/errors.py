"""Errors of moving data. `reason` is a CamelCase word from REASONS, for conditions and results."""

from __future__ import annotations

from typing import ClassVar

from moorage_kube.errors import MoorageError

EXIT_FINAL = 3  # trying again cannot help; any other failure may be tried again

REASONS = (
    "UnsafePath",
    "SourceChanged",
    "SourceNotFound",
    "SourceDenied",
    "SourceFailed",
    "SourceEmpty",
    "BadSource",
    "TooLarge",
    "TooManyFiles",
    "BadArchive",
    "ArchiveBomb",
    "VolumeFull",
    "VolumeFailed",
    "Corrupt",
    "NotEmpty",
    "BackupNotFound",
)


class FillError(MoorageError):
    """Data could not be moved. `final`: a retry would also fail."""

    reason: ClassVar[str] = "SourceFailed"
    final: ClassVar[bool] = True


class UnsafePath(FillError):
    """A name that leads out of its folder, or that a file cannot have."""

    reason = "UnsafePath"


class SourceChanged(FillError):
    """The source has changed since the fill began."""

    reason = "SourceChanged"


class SourceNotFound(FillError):
    reason = "SourceNotFound"


class SourceDenied(FillError):
    reason = "SourceDenied"


class SourceEmpty(FillError):
    reason = "SourceEmpty"


class BadSource(FillError):
    """The address of the source has an invalid format."""

    reason = "BadSource"


class SourceFailed(FillError):
    """The source or the connection to it failed; a retry may help."""

    final = False


class TooLarge(FillError):
    reason = "TooLarge"


class TooManyFiles(FillError):
    reason = "TooManyFiles"


class BadArchive(FillError):
    reason = "BadArchive"


class ArchiveBomb(FillError):
    reason = "ArchiveBomb"


class VolumeFull(FillError):
    reason = "VolumeFull"


class VolumeFailed(FillError):
    """The volume could not be read or written."""

    reason = "VolumeFailed"
    final = False


class Corrupt(FillError):
    """Files on the volume differ from the files that were read, twice."""

    reason = "Corrupt"


class NotEmpty(FillError):
    reason = "NotEmpty"


class BackupNotFound(FillError):
    reason = "BackupNotFound"
