"""Runs a command with layers over folders: what it writes there goes into the layer, and the folder
stays as it is.

The layers are overlayfs, in a mount namespace of this process's own
(https://docs.kernel.org/filesystems/overlayfs.html). This file is started as a script, with the
arguments LAYERS KEPT FOLDERS COMMAND...: LAYERS is the folder in which the layers are made, what is
below KEPT stays outside of them, FOLDERS is a JSON list, and the command starts in the first one.
"""

import ctypes
import errno
import json
import os
import sys

# flags of unshare(2) and mount(2): CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_REC, MS_PRIVATE
NEW_MOUNTS = 0x20000
NEW_USERS = 0x10000000
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 0x40000
# exit statuses: no layer could be made; the command could not be started, as a shell has it
NO_LAYER = 125
NOT_STARTED = 127


def _system(name: str, *arguments: object) -> None:
    """Calls a function of the C library. Raises `OSError`."""
    ctypes.set_errno(0)
    plain = [a.encode() if isinstance(a, str) else a for a in arguments]
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*plain) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _own_mounts(folders: list[str]) -> str:
    """Gives this process mounts of its own: in a user namespace where the user has no right to mounts.

    Returns overlayfs's options. Raises `OSError`.
    """
    user = os.getuid()
    group = os.getgid()
    try:
        _system("unshare", NEW_MOUNTS)
        return "redirect_dir=on"
    except PermissionError:
        # their files could not be changed in a layer
        if any(os.stat(folder).st_uid != user for folder in folders):
            raise
        _system("unshare", NEW_USERS | NEW_MOUNTS)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return "userxattr"


def _mounted_below(folder: str) -> list[str]:
    # mountinfo writes spaces and the like as octal escapes (proc(5))
    with open("/proc/self/mountinfo", "rb") as file:
        points = [
            os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1")) for line in file
        ]
    return [point for point in points if point.startswith(os.path.join(folder, ""))]


def cover(layer: str, folder: str, kept: str, options: str) -> None:
    """Mounts a new layer over `folder`; other mounts below it, and `kept`, stay what they are.

    Raises `OSError`.
    """
    uncovered = _mounted_below(folder)
    if kept.startswith(os.path.join(folder, "")):
        uncovered.append(kept)
    opened = {path: os.open(path, os.O_PATH) for path in uncovered}
    below = os.stat(folder).st_dev
    names = {"lowerdir": folder, "upperdir": f"{layer}/upper", "workdir": f"{layer}/work"}
    for name in ("upperdir", "workdir"):
        os.makedirs(names[name])
    # by descriptor: a path may have commas and colons, which part the options
    places = [f"{name}=/proc/self/fd/{os.open(path, os.O_PATH)}" for name, path in names.items()]
    _system("mount", "overlay", folder, "overlay", 0, ",".join([*places, options]))
    # such as over the root: this process's own stays what it was
    if os.stat(folder).st_dev == below:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    for path, descriptor in opened.items():
        _system("mount", f"/proc/self/fd/{descriptor}", path, None, BIND | RECURSIVE, None)


def main() -> None:
    layers, kept, folders, *command = sys.argv[1:]
    covered = json.loads(folders)
    try:
        options = _own_mounts(covered)
        _system("mount", None, "/", None, RECURSIVE | PRIVATE, None)
        # a folder after its parents
        for number, folder in sorted(enumerate(covered), key=lambda each: len(each[1])):
            cover(os.path.join(layers, str(number)), folder, kept, options)
        os.chdir(covered[0])
    except OSError as error:
        sys.stderr.write(
            f"vitprof: no layer could be put over {folders}: {error.strerror or error}\n"
        )
        sys.exit(NO_LAYER)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"vitprof: cannot start {command[0]}: {error.strerror}\n")
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main()
