# To be sourced: where a command is. Not `command -v`, which knows the applets of busybox.

# leaves the file of the command in `program`; fails where there is none
find_program() { # COMMAND
    program=$1
    case $program in
    */*)
        [ -f "$program" ] && [ -x "$program" ]
        return
        ;;
    esac
    rest=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}:
    while [ -n "$rest" ]; do
        place=${rest%%:*}
        rest=${rest#*:}
        program=${place:-.}/$1
        [ -f "$program" ] && [ -x "$program" ] && return
    done
    return 1
}
