"""Why data could not be moved. `reason` is one CamelCase word from REASONS; conditions and results carry it."""

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
    """Data could not be moved. `final`: another try would end the same way."""

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
    """The source is written in a way that is not understood."""

    reason = "BadSource"


class SourceFailed(FillError):
    """The source, or the way to it, failed for now."""

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
    """The volume refused to read or write."""

    reason = "VolumeFailed"
    final = False


class Corrupt(FillError):
    """Files on the volume differ from the files that were read, twice."""

    reason = "Corrupt"


class NotEmpty(FillError):
    reason = "NotEmpty"


class BackupNotFound(FillError):
    reason = "BackupNotFound"
