# Run one container of a set: sh member.sh FOLDER NAME RETRIES PAUSE DEPENDENCIES COMMAND [ARGUMENT...]
#
# POSIX sh, as wrapper.sh. Waits until the containers that it depends on (names, with commas between them) have
# ended well, then runs the command; one that fails runs again, RETRIES times at most, PAUSE seconds later. Its exit
# code is that of the last try, and is left for the others in `set/NAME`; 64: the command does not exist, or a
# dependency failed, and nothing ran; 85: as in wrapper.sh.

folder=$1 name=$2 retries=$3 pause=$4 dependencies=$5
shift 5
box=$folder/bin/busybox
[ -x "$box" ] || box=
tool() {
    if [ -n "$box" ]; then "$box" "$@"; else command "$@"; fi
}
say() {
    echo "moorage: $*" >&2
}
. "$folder/find.sh"
. "$folder/ends.sh"

# signals go to the command; INT and QUIT as TERM, because a shell starts background processes with both ignored
pid='' stopping=''
pass_on() {
    [ -z "$pid" ] || kill -s "$1" "$pid" 2>/dev/null
}
trap 'stopping=1; pass_on TERM; [ -z "$reader" ] || kill -s KILL "$reader" 2>/dev/null' TERM INT QUIT
for signal in HUP USR1 USR2 CONT WINCH; do
    trap "pass_on $signal" "$signal"
done
export MOORAGE_DONE_FILE="$folder/set/$name.finished"
exec 8<&0 9<>"$folder/set/$name.alive"
(umask 022 && : >"$folder/set/$name.started")

leave() { # CODE
    umask 022
    if ! { echo "$1" >"$folder/set/$name.code" && tool mv "$folder/set/$name.code" "$folder/set/$name"; }; then
        say "the end of this container cannot be noted: its volume cannot be written, or is full"
        [ "$1" -ne 0 ] || exit 74
    fi
    exit "$1"
}

# sets `code` to the exit code of a background process; a signal interrupts `wait`
code=
wait_for() { # PID
    while :; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || return
    done
}

while [ -n "$dependencies" ]; do
    dependency=${dependencies%%,*}
    case $dependencies in *,*) dependencies=${dependencies#*,} ;; *) dependencies= ;; esac
    wait_for_end "$dependency"
    [ -z "$stopping" ] || leave 143
    if [ "$ended" != 0 ]; then
        say "not run: the container $dependency, which it depends on, ended with exit code $ended"
        leave 64
    fi
done

if ! find_program "$1"; then
    say "exec: \"$1\": executable file not found in \$PATH"
    leave 64
fi
shift
while :; do
    (
        trap - TERM HUP USR1 USR2 CONT WINCH
        exec <&8 8<&- 9>&-
        exec "$program" "$@"
    ) &
    pid=$!
    [ -z "$stopping" ] || kill -s TERM "$pid" 2>/dev/null # it came before there was a command
    wait_for "$pid"
    pid=
    if [ "$code" -eq 0 ] && [ -n "$stopping" ] && [ ! -e "$MOORAGE_DONE_FILE" ]; then
        say "interrupted: the program was asked to stop and did not report that it had finished (\$MOORAGE_DONE_FILE)"
        leave 85
    fi
    [ "$code" -ne 0 ] && [ "$retries" -gt 0 ] && [ -z "$stopping" ] || leave "$code"
    retries=$((retries - 1))
    say "exit code $code: running again"
    (
        trap - TERM
        exec 9>&-
        if [ -n "$box" ]; then exec "$box" sleep "$pause"; else exec sleep "$pause"; fi
    ) &
    pid=$!
    wait_for "$pid"
    pid=
    [ -z "$stopping" ] || leave 143
done
