#!/bin/sh
# Makes the secrets of docker-compose.yml, and those of deploy/kuberay, in ./secrets; what is there stays.
set -eu
umask 077
mkdir -p secrets

make_one() {
    [ -s "secrets/$1" ] || head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "secrets/$1"
}

make_one ray_token
make_one database_password
make_one wiretune_secret
make_one redis_password
[ -s secrets/wiretune_database_url ] ||
    printf 'postgresql://wiretune:%s@postgres/wiretune' "$(cat secrets/database_password)" > secrets/wiretune_database_url
# Of deploy/kuberay alone: compose does not mount it, and its API makes a key in its state directory.
[ -s secrets/wiretune_api_key ] ||
    printf 'wt_%s' "$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" > secrets/wiretune_api_key
# Prometheus' key is made by a running service: wiretune keys create prometheus --role operator > secrets/metrics_key
[ -e secrets/metrics_key ] || : > secrets/metrics_key
# Containers read them as users of their own; the folder above is its owner's alone.
chmod 644 secrets/*
