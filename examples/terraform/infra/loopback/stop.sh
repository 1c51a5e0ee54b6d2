# End the machine in $PLACE with all of its processes, and delete it.
[ ! -s "$PLACE/pid" ] || kill "$(cat "$PLACE/pid")" 2>/dev/null || :
for process in /proc/[0-9]*; do
    if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qxF "HOME=$PLACE/home"; then
        kill -9 "${process#/proc/}" 2>/dev/null || :
    fi
done
rm -rf "$PLACE"
