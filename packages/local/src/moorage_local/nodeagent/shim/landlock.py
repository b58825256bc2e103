"""The Landlock domain of a fenced container: it cannot see the files behind its mounts."""

from __future__ import annotations

import errno
import os
import struct

from .kernel import libc_of, os_error

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # on every architecture
LANDLOCK_CREATE_RULESET_VERSION = LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_ACCESS_FS_MAKE_BLOCK, LANDLOCK_ACCESS_FS_REFER = 1 << 11, 1 << 13
LANDLOCK_ABI_OF_REFER = 2  # Linux 5.19
PR_CAPBSET_DROP = 24
WAYS_BEHIND = {  # <linux/capability.h>: capabilities to look behind a fence; containers do not have them either
    "DAC_READ_SEARCH": 2,  # opens files by their handles, past all mounts
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "PERFMON": 38,  # reads the environment and the memory map of any process
    "BPF": 39,
    "CHECKPOINT_RESTORE": 40,
}


def enter_domain() -> bool:
    """Put this process into its own Landlock domain; return False if the kernel has none, or it is turned off.

    A domain of Linux before 5.19 is not used either: it forbids to move or link files from one folder to another,
    as every domain does without a rule that allows it.

    The domain forbids one kind of access to files, as it must: making block devices, by which root could read the
    disk itself. The program executed next also lacks the capabilities to look behind a fence, if it runs as
    root. Needs CAP_SYS_ADMIN in its user namespace, which the creator of a namespace has. Raises OSError.
    """
    import ctypes

    libc = libc_of()
    for number in WAYS_BEHIND.values():
        # fails for a process without it, and for one that the kernel does not know
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_CREATE_RULESET_VERSION)
    if abi < LANDLOCK_ABI_OF_REFER:
        if abi > 0 or ctypes.get_errno() in (errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise os_error("landlock_create_ruleset")
    handled = ctypes.c_uint64(LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_REFER)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        raise os_error("landlock_create_ruleset")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr, which is packed
        everywhere = ctypes.create_string_buffer(struct.pack("=Qi", LANDLOCK_ACCESS_FS_REFER, root), 12)
        if libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, everywhere, 0) != 0:
            raise os_error("landlock_add_rule")
        if libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
            raise os_error("landlock_restrict_self")
    finally:
        os.close(root)
        os.close(ruleset)
    return True
