# Start the machine in $PLACE, unless it runs: an sshd at $ADDRESS:2222 for $PUBLIC_KEY, with a home of its own.
set -eu
umask 077
mkdir -p "$PLACE/home"
cd "$PLACE"
exec 9>lock
flock 9
if [ -s pid ] && kill -0 "$(cat pid)" 2>/dev/null; then exit 0; fi
sleep "$BOOT_SECONDS"
id -un >user
rm -f pid
[ -e host_key.pub ] || { rm -f host_key; ssh-keygen -q -t ed25519 -N '' -C '' -f host_key; }
printf '%s\n' "$PUBLIC_KEY" >authorized_keys
cat >sshd_config <<END
ListenAddress $ADDRESS
Port 2222
HostKey $PLACE/host_key
AuthorizedKeysFile $PLACE/authorized_keys
PidFile $PLACE/pid
SetEnv HOME="$PLACE/home" PATH="$PATH"
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100:30:200
END
mkdir -p /run/sshd 2>/dev/null || : # root's sshd needs it
"$(command -v sshd || echo /usr/sbin/sshd)" -f "$PLACE/sshd_config" -E "$PLACE/log" 9>&- || { cat log >&2; exit 1; }
for _ in $(seq 200); do
    [ ! -s pid ] || exit 0
    sleep 0.05
done
cat log >&2
exit 1
