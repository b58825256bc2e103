"""The conditions of our kinds: their types, and the fixed list of reasons for each.

Controllers write them. The reference page of the kinds is generated from this table; a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class ConditionType(Struct, frozen=True):
    """A condition: the meaning of True, and the meaning of each reason."""

    name: str
    meaning: str
    reasons: Mapping[str, str]


_MOVE_FAILURES = {
    "ArchiveBomb": "The archive grows too much when it is unpacked.",
    "BadArchive": "The archive is damaged, or of a format that cannot be read.",
    "BadSource": "The address of the source is invalid.",
    "BackupNotFound": "The backup does not exist at the target.",
    "Corrupt": "The volume twice returned other data than was written.",
    "NotEmpty": "The volume already holds files.",
    "SourceChanged": "The source changed during the transfer.",
    "SourceDenied": "The source refused the credentials.",
    "SourceEmpty": "The source has no files.",
    "SourceFailed": "The source, or the network on the way to it, failed.",
    "SourceNotFound": "The source does not exist.",
    "TooLarge": "The data is larger than the volume.",
    "TooManyFiles": "The source has too many files.",
    "Unexpected": "The process failed in an unforeseen way; the message says more.",
    "UnsafePath": "A name leads out of its folder, or is no valid file name.",
    "VolumeFailed": "The volume refused to read or write.",
    "VolumeFull": "The volume is full.",
}

CONDITIONS: Mapping[str, tuple[ConditionType, ...]] = {
    "Budget": (
        ConditionType(
            "Ready",
            "The use is known.",
            {
                "Computed": "True: use is computed every minute.",
                "NotComputed": "The spec is wrong, or a budget of money has no prices; the budget has no effect.",
            },
        ),
    ),
    "Dataset": (
        ConditionType(
            "Ready",
            "The data is complete and checked; pods can mount it.",
            {
                "Filled": "The data is there.",
                "MakingVolume": "The volume is being created.",
                "VolumeGoing": "The volume is being deleted.",
                "Starting": "The filler is about to start.",
                "Waiting": "The filler pod waits; the message has the reason.",
                "Filling": "The filler copies data.",
                "Retrying": "The last attempt failed; the next one starts after a pause.",
                "Cloning": "A clone that many nodes can read is being created.",
                "Deleting": "The dataset is being deleted; claims of other tenants are deleted first.",
                "Invalid": "A field is invalid.",
                "NameTaken": "Another object has a name that the dataset needs.",
                "NoImage": "The operator does not know the image of the filler.",
                "NoStorage": "The cluster has no storage class for the dataset.",
                "Refused": "The cluster refused an object of the dataset.",
                "VolumeLost": "The volume of a filled dataset was deleted.",
                "FillFailed": "The filler failed without giving a reason.",
                **_MOVE_FAILURES,
            },
        ),
        ConditionType(
            "Shared",
            "Every tenant in `spec.readers` can mount the dataset.",
            {"Shared": "The claims of the readers exist.", "NotShared": "At least one reader cannot mount it."},
        ),
    ),
    "GuardrailPolicy": (),
    "IdlePolicy": (),
    "Machine": (
        ConditionType(
            "Ready",
            "Every machine is reserved or in use.",
            {
                "Ready": "Every machine is reserved or in use.",
                "Placing": "Machines are being reserved for the first time since the spec changed.",
                "Unplaced": "No node of the pool has room for some machines.",
                "NoNodes": "No Ready node in mode ready offers some machine type.",
                "NotStarting": "Reservations have places, but their pods do not start, often for their image.",
                "GroupTaken": "Another Machine has the same group.",
                "Invalid": "A field is invalid.",
            },
        ),
        ConditionType(
            "Oversubscribed",
            "More machines are in use than are offered now. Guests are not evicted.",
            {
                "OverAvailable": "More are in use than offered.",
                "WithinAvailable": "All machines in use are offered.",
            },
        ),
        ConditionType(
            "UnmanagedGuests",
            "Some pods name a machine type but never passed the webhook.",
            {"NotInjected": "Such pods exist; the message names them.", "None": "No such pod exists."},
        ),
    ),
    "MachineNodePool": (
        ConditionType(
            "Ready",
            "Every node of the pool is marked.",
            {
                "Ready": "Every node is marked.",
                "NodeMissing": "A node of the pool does not exist.",
                "NodeTaken": "Another pool has marked a node.",
            },
        ),
    ),
    "MapJob": (
        ConditionType(
            "Accepted",
            "The server has put the map into its queue.",
            {
                "Accepted": "The map is in the queue.",
                "Invalid": "A field is invalid.",
                "NameTaken": "Another map has the name.",
                "NoServerAddress": "The server does not know the address that workers reach it at.",
                "BadLimits": "`spec.limits` contradicts a limit that exists.",
                "QuotaExceeded": "The namespace has as many maps or items as it may have.",
            },
        ),
        ConditionType(
            "Working",
            "The map has, or gets, workers. The reason names the limit of their number.",
            {
                "Waiting": "The operator has not looked at the map yet.",
                "NotAccepted": "The server has not put the map into the queue yet.",
                "NoItems": "The map has no items yet.",
                "Probing": "The first workers try; the others start when one has taken an item.",
                "Working": "As many workers as the items can use.",
                "Parallelism": "As many workers as `spec.parallelism` allows.",
                "Nodes": "As many workers as the nodes can hold, and a few more.",
                "Quota": "A quota of the namespace allows no more workers.",
                "Queue": "Workers wait in a queue of Kueue; the message says why.",
                "RestartLimit": "Too many workers were lost; further losses are not replaced.",
                "NeedsMemory": "The items that are left need more memory than the workers have.",
                "Paused": "The map is paused.",
                "Cancelled": "The map was cancelled.",
                "Finished": "Every item is done or dead.",
                "Deleted": "The map is being deleted.",
                "Refused": "The cluster refused the workers.",
                "OutOfMemory": "See the condition Failed.",
                "CannotWork": "See the condition Failed.",
                "CannotStart": "See the condition Failed.",
                "WorkerFailed": "See the condition Failed.",
            },
        ),
        ConditionType(
            "Complete",
            "Every item is done or dead.",
            {
                "Waiting": "The operator has not looked at the map yet.",
                "Unfinished": "Some items are open.",
                "Cancelled": "The map was cancelled before its end.",
                "Finished": "Every item is done.",
                "ItemsFailed": "Every item is done or dead, and at least one is dead.",
            },
        ),
        ConditionType(
            "Failed",
            "Workers fail in a way that more workers would not fix. Change the MapJob to try again.",
            {
                "Refused": "The cluster refused the workers.",
                "CannotStart": "Workers do not start: image, pull secret, or no python3 in it.",
                "CannotWork": "Workers start but cannot work: a volume, or the queue, is out of reach.",
                "OutOfMemory": "Workers are killed for memory before they finish an item.",
                "WorkerFailed": "Workers end with an internal error.",
                "RestartLimit": "Too many workers were lost.",
                "Again": "The MapJob was changed; it is tried again.",
            },
        ),
    ),
    "Reservation": (
        ConditionType(
            "Accepted",
            "The reservation is in the calendar.",
            {
                "Accepted": "The reservation is in force.",
                "Invalid": "A field is invalid.",
                "UnknownMachine": "The machine type does not exist in the group.",
                "Past": "It ended before it was granted.",
                "Conflict": "Other reservations leave too few machines; the message names them.",
            },
        ),
        ConditionType(
            "Held",
            "All reserved machines are held, or will be available at the start.",
            {
                "AllHeld": "All of them are held.",
                "NotYet": "The reservation starts later.",
                "Shortfall": "Earlier guests still use some of them.",
                "NotAccepted": "The reservation was refused.",
                "Ended": "The reservation has ended.",
            },
        ),
    ),
    "Tenant": (
        ConditionType(
            "Ready",
            "The namespace is as the Tenant says.",
            {
                "Ready": "The namespace is as the Tenant says.",
                "Deleted": "The Tenant is being deleted.",
                "NamespaceGoing": "The namespace is being deleted.",
                "NamespaceReserved": "The namespace belongs to Kubernetes or to Moorage.",
                "NamespaceTaken": "Another Tenant has the namespace.",
                "NoNodes": "No node without GPUs has the labels of `spec.cpuNodes`.",
                "InvalidQuota": "`spec.quota` has an invalid name or amount.",
            },
        ),
    ),
    "VolumeBackup": (
        ConditionType(
            "Ready",
            "The last backup succeeded, or none is due yet.",
            {
                "Waiting": "The next backup waits for its time.",
                "Running": "A backup is being made.",
                "Suspended": "Backups are suspended.",
                "Invalid": "A field is invalid.",
                "NoVolume": "The volume does not exist in the namespace.",
                "CannotRun": "The backup cannot run; the message says why.",
                "BackupFailed": "The backup failed without giving a reason.",
                **_MOVE_FAILURES,
            },
        ),
    ),
    "Workspace": (
        ConditionType(
            "Ready",
            "The workspace can be opened.",
            {
                "Ready": "It can be opened.",
                "Starting": "Its pod or its application is starting.",
                "Replacing": "Its former pod is ending.",
                "Stopping": "Its pod is ending.",
                "Stopped": "It is stopped; its home remains.",
                "Image": "The image cannot be pulled.",
                "Config": "The container cannot be created as configured.",
                "Volume": "A volume is missing or cannot be mounted.",
                "Unschedulable": "No node fits now; the message says why.",
                "Machine": "It waits for a machine.",
                "Memory": "It was killed for memory and is held.",
                "Gate": "Another scheduling gate holds its pod.",
                "Queue": "It waits in a queue of Kueue; the message says why.",
                "Quota": "A quota of the namespace is used up.",
                "UnknownGpuType": "The cluster has no GPUs of this type.",
                "Crashes": "Its application ends by itself.",
                "Invalid": "A field is invalid.",
                "UnknownType": "The workspace type does not exist.",
                "BadTemplate": "The workspace type is defined wrongly.",
                "BadPlatform": "The settings of workspaces in the cluster are invalid.",
                "NameTaken": "Another object has a name that the workspace needs.",
                "Refused": "The cluster refused an object of the workspace.",
            },
        ),
    ),
}
"""By kind. A kind without conditions has none to tell."""
