"""The program in the pods of workflow steps: `python -m moorage_workflows.executor
init|wait|http|data|resource`.

`init` fetches input artifacts and brings the script that wraps the step's command. `wait` saves the
outputs of the command: parameters, artifacts, the result and the log, and reports to the server. `http`,
`data` and `resource` are the step itself: the request of an HTTP template, the keys of a data template,
objects of the cluster.

Belongs here: the files of a step, their transfer to and from stores, the script `wrapper.sh`, which runs
in the user's image, and templates without an image of the user. Does not belong here: anything but the
standard library, fsspec for buckets, and the expressions of `decide.workflows.text`; Kubernetes, except
in `resource`.

The folder that the containers of the pod share:

    bin/busybox            the tools of wrapper.sh, on a cluster
    wrapper.sh, paths      the script, and the outputs that it copies
    find.sh                how the scripts find a command
    keep-result, keep-log  exist when standard output, or all output, is saved
    alive                  a pipe that the script holds open
    member.sh, ends.sh     the script around each container of a set, and how it waits for another
    members                the names of the containers of the set, a line each
    set/NAME               the exit code of a container of the set, when it has ended
    set/NAME.started       exists when this container has started
    set/NAME.alive         a pipe that this container holds open
    in/N                   input artifacts; main mounts each at its path
    out/                   the copied outputs, by number of the line in `paths`
    tmp/                   of init and wait
"""
