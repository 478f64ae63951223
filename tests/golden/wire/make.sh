#!/bin/sh
# Writes the golden files again: make.sh FOLDER-OF-4.9.8-CLIENT-JARS FOLDER-OF-5.5.0-CLIENT-JARS
# The interop tests put these folders into .cache/interop.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# $1 line, $2 jars, then the packages in the order of the marks below
write_golden() {
    sed -e "s/@PROTOCOL@/$3/" -e "s/@ADMIN@/$4/" -e "s/@GROUP@/$5/" -e "s/@VERSION@/$6/" \
        -e "s/@WRAPPER@/$7/" "$here/WireGolden.java.in" > "$work/WireGolden.java"
    mkdir "$work/$1"
    javac -nowarn -proc:none -encoding UTF-8 -cp "$2/*" -d "$work/$1" "$work/WireGolden.java"
    rm -rf "${here:?}/$1"
    java -cp "$work/$1:$2/*" WireGolden "$here/$1"
}

common=org.apache.rocketmq.common
remoting=org.apache.rocketmq.remoting.protocol
write_golden 4.9.8 "$1" $common.protocol $common.admin $common.subscription \
    $common.DataVersion TopicConfigSerializeWrapper
write_golden 5.5.0 "$2" $remoting $remoting.admin $remoting.subscription \
    $remoting.DataVersion TopicConfigAndMappingSerializeWrapper

cd "$here"
sha256sum 4.9.8/* 5.5.0/* > SHA256SUMS
