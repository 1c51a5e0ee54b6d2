#!/bin/bash
# shutdown, systemctl and sudo of an EC2 instance, by the name it is called by.
case ${0##*/} in
    shutdown) kill -s USR1 1; sleep 5 ;;
    systemctl) exit 1 ;;
    sudo)
        while [[ ${1-} == -* ]]; do
            case $1 in -u | -g) shift 2 ;; *) shift ;; esac
        done
        exec env "$@"
        ;;
esac
