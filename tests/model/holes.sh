#!/bin/sh
# holes.sh BUILD "arguments of small" "of walk" "of five" "of idle": each line of rules.tsv must lead to its expected violation.
# VERBOSE=1 prints the traces, too. Exit status 1 when a rule can be left out unnoticed.
build=$1 small=$2 walk=$3 five=$4 idle=$5
tab=$(printf '\t')
unnoticed=0
while IFS=$tab read -r rule configuration switches expected text; do
  case $rule in ''|'#'*) continue ;; esac
  eval "begin=\$$configuration"
  found=$("$build/$configuration" $begin $switches)
  first=$(printf '%s\n' "$found" | head -n 1)
  case $first in
    "VIOLATION $expected"*) verdict=$first ;;
    "STUCK"*) [ "$expected" = STUCK ] && verdict=$first || verdict="UNNOTICED: $first" ;;
    *) verdict="UNNOTICED: $first" ;;
  esac
  case $verdict in UNNOTICED*) unnoticed=$((unnoticed + 1)) ;; esac
  printf '%-21s %s (%s)\n%21s %s\n' "$rule" "$text" "$switches" "" "$verdict"
  [ -z "$VERBOSE" ] || printf '%s\n\n' "$found" | tail -n +2
done < rules.tsv
[ "$unnoticed" = 0 ] || { echo "$unnoticed rules can be left out unnoticed" >&2; exit 1; }
