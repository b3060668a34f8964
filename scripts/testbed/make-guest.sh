#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Makes the guest's kernel and initial RAM disk from Debian's packages and prints the folder that holds them:
#   make-guest.sh [KERNEL-PACKAGE]
# Nothing is installed. The folder is named after what went in, and made once.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libvkrdma/bed
# What a guest needs; each comes with what it depends on. rxe asks for crc32 by its algorithm's name, which no table shows.
modules=(virtio_pci 9pnet_virtio 9p overlay dummy veth crc32_generic rdma_rxe ib_uverbs rdma_ucm)
commands=(sh mount insmod switch_root mkdir cat echo sed)

fail() {
	printf 'make-guest.sh: %s\n' "$*" >&2
	exit 1
}
say() { printf '  %s\n' "$*" >&2; }

[ "$(dpkg --print-architecture)" = amd64 ] || fail "the guest is made for amd64 only"
# Where the machine's package lists are missing or too old, a copy of its own is read: that needs no root.
lists=()
own_lists() {
	say "reading the package lists"
	lists=(-o "Dir::State::Lists=$cache/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
	mkdir -p "$cache/lists/partial"
	apt-get -qq "${lists[@]}" -o APT::Sandbox::User="$(id -un)" update >&2 || fail "the package lists could not be read"
}
find_package() {
	package=${1:-$(apt-cache "${lists[@]}" depends linux-image-amd64 2>/dev/null |
		sed -n '/^ *Depends: linux-image-[^ ]*$/{s/.*: //p;q}')}
	version=$(apt-cache "${lists[@]}" policy "${package:-none}" 2>/dev/null | sed -n 's/^  Candidate: //p')
	[ -n "$version" ] && [ "$version" != '(none)' ]
}
find_package "$@" || {
	own_lists
	find_package "$@" || fail "apt knows no ${1:-linux-image-amd64}"
}
# The recipe is part of the name: a changed script makes another guest.
recipe=$(cat "$0" "$here/init" "$here/kernel_payload.py" | cat - "$(command -v busybox)" | sha256sum | cut -c1-12)
guest_folder() { guest=$cache/${package#linux-image-}_${version}_$recipe; }
guest_folder
if [ -e "$guest/initrd" ]; then
	echo "$guest"
	exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/making.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
say "downloading $package $version"
download() {
	# As root apt would first complain that its own user cannot write here.
	(cd "$work" && apt-get -qq "${lists[@]}" -o APT::Sandbox::User="$(id -un)" download "$package=$version") >"$work/log" 2>&1
}
if ! download; then
	own_lists
	find_package "$@" && download || {
		tail -n 5 "$work/log" >&2
		fail "apt-get could not download $package"
	}
	guest_folder
fi
say "unpacking it"
dpkg-deb -x "$work"/*.deb "$work/k"
[ -d "$work/k/lib" ] || ln -s usr/lib "$work/k/lib" # Debian 13 has them in /usr/lib
release=$(basename "$work"/k/boot/vmlinuz-*)
release=${release#vmlinuz-}
depmod -b "$work/k" "$release"

mkdir -p "$work/i"/{bin,mod,dev,proc,sys,new,lower,rw} "$work/guest"
cp "$(command -v busybox)" "$work/i/bin/busybox"
for c in "${commands[@]}"; do ln -s busybox "$work/i/bin/$c"; done
install -m 755 "$here/init" "$work/i/init"
number=100
for m in "${modules[@]}"; do
	modprobe -d "$work/k" -S "$release" --show-depends "$m" 2>>"$work/log" || say "no module $m: built into the kernel, or not there"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$work/order"
while read -r file; do
	number=$((number + 1))
	name=$number-$(basename "$file")
	case $file in
	*.xz) xz -dc "$file" >"$work/i/mod/${name%.xz}" ;;
	*.zst) zstd -dcq "$file" >"$work/i/mod/${name%.zst}" ;;
	*) cp "$file" "$work/i/mod/$name" ;;
	esac
done <"$work/order"
[ -n "$(find "$work/i/mod" -name '*rdma_rxe*')" ] || fail "$package has no rdma_rxe"
# Uncompressed it starts seconds earlier where the processor is emulated.
/usr/bin/python3 "$here/kernel_payload.py" "$work/k/boot/vmlinuz-$release" "$work/guest/kernel" 2>>"$work/log" ||
	cp "$work/k/boot/vmlinuz-$release" "$work/guest/kernel"
(cd "$work/i" && find . | cpio -o -H newc --quiet) >"$work/guest/initrd"
chmod -R u+rwX,go+rX "$work/guest"
mv -T "$work/guest" "$guest" 2>/dev/null || [ -e "$guest/initrd" ] || fail "cannot make $guest"
# Guests of earlier recipes are not needed any more.
find "$cache" -mindepth 1 -maxdepth 1 -type d -mtime +30 ! -path "$guest" -exec rm -rf {} +
echo "$guest"
