# shellcheck shell=sh
# SPDX-License-Identifier: GPL-2.0
# Sourced by the scripts in this folder: with -h or --help among the options, prints the comment at the head of the script and ends the
# script before the script needs the build root.
for word; do
	case $word in
	--) break ;;
	-h | --help)
		sed -n '3,$ { /^#/!q; s/^# \{0,1\}//p; }' "$0"
		exit 0
		;;
	esac
done
