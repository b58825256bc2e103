"""The shim: one small process per pod that starts its containers and records their outcome.

Standard library only, single-threaded, and independent of the API: it lives on while the control plane is
away. `POD_DIR/spec.json` is its order, `POD_DIR/state.json` its report, `POD_DIR/lock` is locked (flock) as long
as any process of the pod may run, and `POD_DIR/stop` asks it to end.

Three processes at start: the *launcher* (which the agent waits for; exit code below), the *guard* and the *shim*
itself. The guard only waits: if the shim is killed, the guard inherits the pod's processes and kills them.

Launcher's exit code: 0 the shim runs and has written its first state; 3 another shim holds the lock;
4 this pod was started before (state.json exists), so it is never started again; 5 anything else (see shim.log).

Features of Kubernetes that are missing: preStop hooks, users (`securityContext`), terminals, cgroups. Memory is
therefore watched (20 to 200 times a second), not fenced: a container may overshoot its limit for some
milliseconds before it is killed.

`podshim.py` starts it with this folder's parent as `sys.path[0]`, without `moorage`: the modules import each other
by relative names, and otherwise only the standard library. Each way to start imports only the modules it needs,
because an exec probe starts an interpreter every time.

    entry, launching   the ways to start; launcher, guard, and the server that forks launchers
    pod, container     the loop of one pod; one container in it
    mainprocess, programs   from a fork to the main process of a container
    exec               a command next to a container's main process
    mounts, mounting, volumes   the mounts of a container
    private            the private root of a container
    fence, landlock    the folder that containers do not see
    processes, memory, logs, kernel
"""
