# To be sourced, with $folder and $box: how a container of a set learns that another has ended.

# Returns when the container has ended, and sets `ended` to its exit code; 137: it was killed and could not report.
# Nothing is written into the pipe: reading it ends when no container holds it open. The reader opens it for writing
# first, so that it does not wait for a container that has ended already. A script that is to end sets `stopping` and
# kills `reader`: `ended` is 143 then.
ended='' reader=''
wait_for_end() { # NAME
    while [ ! -e "$folder/set/$1" ]; do
        had_started=
        [ ! -e "$folder/set/$1.started" ] || had_started=1
        (
            trap - TERM INT QUIT
            exec 9>&-
            exec 7<>"$folder/set/$1.alive"
            exec 6<"$folder/set/$1.alive" 7>&-
            # before the other container has started, this cannot be seen
            if [ -z "$had_started" ]; then tool sleep 0.1; fi
            if [ -n "$box" ]; then exec "$box" cat <&6 >/dev/null; else exec cat <&6 >/dev/null; fi
        ) &
        reader=$!
        while [ -z "${stopping:-}" ]; do
            wait "$reader"
            kill -0 "$reader" 2>/dev/null || break # else a signal came first
        done
        if [ -n "${stopping:-}" ]; then
            kill -s KILL "$reader" 2>/dev/null
            ended=143
            return
        fi
        if [ -n "$had_started" ] && [ ! -e "$folder/set/$1" ]; then
            ended=137
            return
        fi
    done
    reader=
    IFS= read -r ended <"$folder/set/$1"
}
