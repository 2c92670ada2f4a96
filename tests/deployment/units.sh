#!/usr/bin/env bash
# Checks the systemd units of a directory with systemd itself, in a root of their own in which the commands that they start exist.
set -euo pipefail
units=$(cd "$1" && pwd)
command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not there; apt-get install systemd"; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/etc/systemd/system" "$root/opt/understudy/bin" "$root/usr/lib/systemd" "$root/bin"
for name in understudy watch_and_retrain.py; do
  printf '#!/bin/sh\n' >"$root/opt/understudy/bin/$name"
  chmod +x "$root/opt/understudy/bin/$name"
done
cp "$units"/* "$root/etc/systemd/system/"
cp -a /lib/systemd/system "$root/usr/lib/systemd/system"
said=$(cd "$root/etc/systemd/system" && systemd-analyze verify --man=no --recursive-errors=no --root="$root" ./*.service ./*.timer 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
for timer in "$units"/*.timer; do
  systemd-analyze calendar "$(sed -n 's/^OnCalendar=//p' "$timer")" >/dev/null
  [ -e "${timer%.timer}.service" ] || { echo "$timer: no service of this name"; exit 1; }
done
echo "$(find "$units" -name '*.service' | wc -l) services, $(find "$units" -name '*.timer' | wc -l) timers: no problems"
