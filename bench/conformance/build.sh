#!/bin/sh
# Builds what a cluster without machines needs: build.sh FOLDER. What the folder has already is not built again.
set -eu
folder=$1
here=$(cd "$(dirname "$0")" && pwd)
KUBERNETES_VERSION=v1.35.4
mkdir -p "$folder"

# The module of Kubernetes refers to its own folders for its libraries; these are modules of the same release, with v0 for v1.
if [ ! -x "$folder/kube-apiserver-$KUBERNETES_VERSION" ]; then
    echo "building kube-apiserver and kube-controller-manager $KUBERNETES_VERSION, about seven minutes" >&2
    module=$(cd / && go mod download -json "k8s.io/kubernetes@$KUBERNETES_VERSION" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    [ -d "$module" ] || { echo "k8s.io/kubernetes could not be downloaded" >&2; exit 3; }
    source=$folder/source
    rm -rf "$source"
    mkdir -p "$source"
    for part in cmd pkg plugin third_party api test go.mod go.sum; do
        cp -r "$module/$part" "$source"
    done
    chmod -R u+w "$source"
    libraries=v0.${KUBERNETES_VERSION#v1.}
    sed -i -E "s/^(\tk8s\.io\/[a-z-]+) v0\.0\.0$/\1 $libraries/; /=> \.\/staging/d" "$source/go.mod"
    number=${KUBERNETES_VERSION#v1.}
    flags="-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES_VERSION"
    flags="$flags -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${number%%.*}"
    (cd "$source" && GOWORK=off CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod" \
        go build -ldflags="$flags" -o "$folder/" ./cmd/kube-apiserver ./cmd/kube-controller-manager)
    mv "$folder/kube-apiserver" "$folder/kube-apiserver-$KUBERNETES_VERSION"
    mv "$folder/kube-controller-manager" "$folder/kube-controller-manager-$KUBERNETES_VERSION"
    rm -rf "$source"
fi
ln -sf "kube-apiserver-$KUBERNETES_VERSION" "$folder/kube-apiserver"
ln -sf "kube-controller-manager-$KUBERNETES_VERSION" "$folder/kube-controller-manager"

# Go's own cache makes these quick when nothing has changed.
cd "$here"
export CGO_ENABLED=0
go build -o "$folder/node" ./node
go build -o "$folder/echo-basic" sigs.k8s.io/gateway-api/conformance/echo-basic
go test -c -o "$folder/suite" .
# The definitions of the kinds of the standard channel.
rm -rf "$folder/definitions"
cp -r "$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard" "$folder/definitions"
chmod -R u+w "$folder/definitions"
