#!/bin/bash
# systemctl, shutdown, poweroff, halt, reboot, sudo and cloud-init of an EC2 instance, by the name it is called by.
# Units are files of /etc/systemd/system. Supported: ExecStartPre, ExecStart, Environment, EnvironmentFile, WorkingDirectory,
# Restart, RestartSec, Type=oneshot; of timers OnBootSec, OnActiveSec, OnUnitActiveSec, Unit. Standard output goes to /var/log/UNIT.log.
units=/etc/systemd/system state=/run/units

power() { kill -s "$1" 1; sleep 5; }

shut_down() {
    local signal=USR1 seconds=60 word
    for word in "$@"; do
        case $word in
            -r | --reboot) signal=USR2 ;;
            now | +0) seconds=0 ;;
            +*) seconds=$((60 * ${word#+})) ;;
            -c) kill "$(cat /run/shutdown.pid)" 2>/dev/null; exit 0 ;;
        esac
    done
    [ "$seconds" != 0 ] || power $signal
    setsid sh -c "sleep $seconds; kill -s $signal 1" </dev/null >/dev/null 2>&1 &
    echo $! >/run/shutdown.pid
}

value() { sed -e ':a' -e '/\\$/{N;s/\\\n/ /;ba' -e '}' "$units/$1" | sed -n "s/^$2=//p"; }
last() { value "$1" "$2" | tail -n 1; }
split() { mapfile -t words < <(sed 's/^[-@+!:]*//' <<<"$1" | xargs -n 1 printf '%s\n'); }
full() { case $1 in *.*) echo "$1" ;; *) echo "$1.service" ;; esac; }
is_active() { [ -e "$state/$1" ] && kill -0 "$(cat "$state/$1")" 2>/dev/null; }

run_service() {
    local line file words directory status=0
    while read -r line; do
        split "$line"
        export "${words[@]}"
    done < <(value "$1" Environment)
    for file in $(value "$1" EnvironmentFile); do
        set -a
        [ ! -e "${file#-}" ] || . "${file#-}"
        set +a
    done
    directory=$(last "$1" WorkingDirectory)
    cd "${directory:-/}" || exit 200
    while :; do
        while read -r line; do
            split "$line"
            "${words[@]}" </dev/null
            status=$?
            [ $status = 0 ] || break
        done < <(value "$1" ExecStartPre; value "$1" ExecStart)
        case $(last "$1" Restart):$status in
            always:* | on-failure:[1-9]*) sleep "$(last "$1" RestartSec | grep . || echo 0.1)" ;;
            *) rm -f "$state/$1"; exit $status ;;
        esac
    done
}

seconds() { local text; text=$(last "$1" "$2"); text=${text//min/m}; echo "${text//sec/s}"; }

run_timer() {
    local first again service
    first=$(seconds "$1" OnBootSec)$(seconds "$1" OnActiveSec) again=$(seconds "$1" OnUnitActiveSec)
    service=$(last "$1" Unit)
    sleep "${first:-0}"
    while systemctl start "${service:-${1%.timer}.service}"; [ -n "$again" ]; do sleep "$again"; done
}

start() {
    [ -e "$units/$1" ] || { echo "Failed to start $1: Unit $1 not found." >&2; exit 5; }
    ! is_active "$1" || return 0
    setsid "$0" run-unit "$1" </dev/null >>"/var/log/$1.log" 2>&1 &
    echo $! >"$state/$1"
    [ "$(last "$1" Type)" != oneshot ] || wait $!
}

stop() {
    ! is_active "$1" || kill -TERM -- "-$(cat "$state/$1")"
    for _ in {1..100}; do is_active "$1" && sleep 0.05; done
    ! is_active "$1" || kill -KILL -- "-$(cat "$state/$1")"
    rm -f "$state/$1"
}

control() {
    local verb=$1 now= unit name
    shift
    case $verb in
        daemon-reload | mask | reset-failed) exit 0 ;;
        poweroff | halt) power USR1 ;;
        reboot) power USR2 ;;
        is-system-running) echo running; exit 0 ;;
        run-unit) case $1 in *.timer) run_timer "$1" ;; *) run_service "$1" ;; esac; exit ;;
    esac
    for name in "$@"; do
        case $name in
            --now) now=1; continue ;;
            -*) continue ;;
        esac
        unit=$(full "$name")
        case $verb in
            enable) ln -sf "../$unit" "$units/multi-user.target.wants/$unit"; [ -z "$now" ] || start "$unit" ;;
            disable) rm -f "$units/multi-user.target.wants/$unit"; [ -z "$now" ] || stop "$unit" ;;
            start) start "$unit" ;;
            stop) stop "$unit" ;;
            restart | try-restart) stop "$unit"; start "$unit" ;;
            is-enabled) [ -e "$units/multi-user.target.wants/$unit" ] && echo enabled || { echo disabled; exit 1; } ;;
            is-active | status) is_active "$unit" && echo active || { echo inactive; exit 3; } ;;
            *) echo "Unknown command verb $verb." >&2; exit 1 ;;
        esac
    done
}

case ${0##*/} in
    shutdown) shut_down "$@" ;;
    poweroff | halt) power USR1 ;;
    reboot) power USR2 ;;
    sudo)
        while [[ ${1-} == -* ]]; do
            case $1 in -u | -g) shift 2 ;; *) shift ;; esac
        done
        exec env "$@"
        ;;
    cloud-init)
        case "$*" in *--wait*) until [ -e /var/lib/cloud/instance/boot-finished ]; do sleep 0.05; done ;; esac
        [ -e /var/lib/cloud/instance/boot-finished ] && echo "status: done" || echo "status: running"
        ;;
    *)
        words=()
        for word in "$@"; do case $word in --now) words+=("$word") ;; -*) ;; *) words+=("$word") ;; esac; done
        [[ ${words[0]-} != --now ]] || words=("${words[@]:1}" --now)
        control "${words[@]}"
        ;;
esac
