# Run the command of a step and save its outputs: sh wrapper.sh FOLDER COMMAND [ARGUMENT...]
#
# POSIX sh: runs under busybox, brought into images that may have no shell, and under the sh of a machine.
# FOLDER: see the package's docstring. `paths` has a line for each output: "p PATH" is a parameter, "a PATH" an
# artifact. The exit code is the command's own; 64: the command does not exist; 74: outputs could not be saved; 85: the
# command was asked to stop, and exited with 0 before it had finished: it did not create $MOORAGE_DONE_FILE.

folder=$1
shift
out=$folder/out
box=$folder/bin/busybox
[ -x "$box" ] || box=
parameter_bytes=262146 # the limit, a newline, and one that shows that it is too long
result_bytes=262145    # the last ones, with the newline at the end

tool() {
    if [ -n "$box" ]; then "$box" "$@"; else command "$@"; fi
}

say() {
    echo "moorage: $*" >&2
}

. "$folder/find.sh"

# signals go to the command, also those that come before it runs; INT and QUIT as TERM, because a shell starts
# background processes with both ignored
pid=
early=
told=
pass_on() {
    [ "$1" != TERM ] || told=1
    if [ -n "$pid" ]; then kill -s "$1" "$pid" 2>/dev/null; else early="$early $1"; fi
}
trap 'pass_on TERM' TERM INT QUIT
for name in HUP USR1 USR2 CONT WINCH; do
    trap "pass_on $name" "$name"
done

export MOORAGE_DONE_FILE="$out/finished"
exec 8<&0 9<>"$folder/alive"
(umask 022 && : >"$out/started")

# the output: to its usual place, and into files
copies='' last=
copy() { # NAME of the pipe, descriptor, files
    tool mkfifo -m 600 "$out/$1"
    (
        trap '' TERM INT QUIT HUP
        exec 9>&-
        umask 022
        pipe=$out/$1
        to=$2
        shift 2
        if [ -n "$box" ]; then exec "$box" tee -a "$@" <"$pipe" >&"$to"; else exec tee -a "$@" <"$pipe" >&"$to"; fi
    ) &
    copies="$copies $!"
}
to_out='' to_err='' kept=
if [ -e "$folder/keep-log" ]; then
    kept=$out/log
    copy err.pipe 2 "$out/log"
    to_err=$out/err.pipe
fi
if [ -e "$folder/keep-result" ]; then
    tool mkfifo -m 600 "$out/tail.pipe"
    (
        trap '' TERM INT QUIT HUP
        exec 9>&-
        umask 022
        tool tail -c "$result_bytes" <"$out/tail.pipe" >"$out/result"
    ) &
    last=$!
    to_out=$out/out.pipe
    if [ -n "$kept" ]; then copy out.pipe 1 "$out/tail.pipe" "$kept"; else copy out.pipe 1 "$out/tail.pipe"; fi
elif [ -n "$kept" ]; then
    copy out.pipe 1 "$kept"
    to_out=$out/out.pipe
fi

if [ $# -gt 0 ] && find_program "$1"; then
    shift
    (
        trap - TERM HUP USR1 USR2 CONT WINCH
        exec <&8 8<&- 9>&-
        [ -z "$to_out" ] || exec >"$to_out"
        [ -z "$to_err" ] || exec 2>"$to_err"
        exec "$program" "$@"
    ) &
    pid=$!
    for name in $early; do kill -s "$name" "$pid" 2>/dev/null; done
    # a signal interrupts `wait`: then its answer is not yet the command's
    while :; do
        wait "$pid"
        code=$?
        kill -0 "$pid" 2>/dev/null || break
    done
    if [ "$code" -eq 0 ] && [ -n "$told" ] && [ ! -e "$MOORAGE_DONE_FILE" ]; then
        say "interrupted: the program was asked to stop and did not report that it had finished (\$MOORAGE_DONE_FILE)"
        code=85
    fi
else
    say "exec: \"$1\": executable file not found in \$PATH"
    code=64
    [ -z "$to_out" ] || : >"$to_out"
    [ -z "$to_err" ] || : >"$to_err"
fi

# the rest of the pipes; a process that the command left behind may hold them open
patience=50
for copier in $copies; do
    while kill -0 "$copier" 2>/dev/null && [ "$patience" -gt 0 ]; do
        tool sleep 0.1
        patience=$((patience - 1))
    done
    kill -s KILL "$copier" 2>/dev/null
done
wait $copies $last 2>/dev/null
[ -z "$copies" ] || tool rm -f "$out/out.pipe" "$out/err.pipe" "$out/tail.pipe"

# the outputs of a set are complete when all of its containers have ended
if [ -e "$folder/members" ]; then
    . "$folder/ends.sh"
    while IFS= read -r member; do
        [ "$member" = main ] || wait_for_end "$member"
    done <"$folder/members"
fi

# the outputs
umask 022
keep() { # number, kind, path
    if [ ! -e "$3" ] && [ ! -L "$3" ]; then
        : >"$out/$1.missing"
    elif [ "$2" = p ] && [ -d "$3" ]; then
        echo "it is a folder" >"$out/$1.error"
    elif [ "$2" = p ]; then
        tool head -c "$parameter_bytes" "$3" >"$out/$1.parameter" 2>"$out/$1.error" && tool rm -f "$out/$1.error"
    else
        real=$3
        [ ! -L "$3" ] || real=$(tool readlink -f "$3")
        (cd "${real%/*}/" && tool tar -cf "$out/$1.tar" "./${real##*/}") 2>"$out/$1.error" &&
            tool rm -f "$out/$1.error"
    fi
}
number=0
while IFS=' ' read -r kind path; do
    keep "$number" "$kind" "$path"
    number=$((number + 1))
done <"$folder/paths"

if ! { echo "$code" >"$out/code" && tool mv "$out/code" "$out/done"; }; then
    say "the outputs of this step cannot be saved: its volume cannot be written, or is full"
    [ "$code" -ne 0 ] || code=74
fi
exit "$code"
