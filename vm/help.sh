# shellcheck shell=sh
# SPDX-License-Identifier: GPL-2.0
# Sourced by the scripts beside it: with -h or --help among the options it prints the comment at the head of the script, and ends
# the script before that needs the build root.
for word; do
	case $word in
	--) break ;;
	-h | --help)
		sed -n '3,$ { /^#/!q; s/^# \{0,1\}//p; }' "$0"
		exit 0
		;;
	esac
done
