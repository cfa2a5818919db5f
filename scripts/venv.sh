# Sourced by the other scripts: makes .venv in the checkout with the extras named as arguments, and leaves $python set.
# A stamp makes the second run quick: it is made anew when pyproject.toml or the extras change.

make_venv() {
    local extras=$1 root base
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    for base in python3 python3.13 python3.12 python3.11; do
        "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
        base=
    done
    if [ -z "$base" ]; then
        echo "error: jobpool needs Python 3.11 or newer; install it, for example: apt-get install python3" >&2
        exit 2
    fi
    python=$root/.venv/bin/python
    local stamp
    stamp="$extras $(cksum <"$root/pyproject.toml") $root"
    if [ "$(cat "$root/.venv/stamp" 2>/dev/null)" != "$stamp" ] || ! "$python" -c 'import pool' 2>/dev/null; then
        echo "setting up .venv ($extras) …" >&2
        if ! "$base" -c 'import ensurepip, venv' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            apt-get install -qq -y python3-venv >&2 || { apt-get update -qq && apt-get install -qq -y python3-venv; } >&2
        fi
        "$base" -m venv "$root/.venv" ||
            { echo "error: cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }
        "$python" -m pip install --quiet --disable-pip-version-check --editable "$root[$extras]" 2>&1 |
            { grep -v '^WARNING' || true; } >&2
        "$python" -c 'import pool' || { echo "error: the package could not be installed; see above" >&2; exit 2; }
        printf '%s\n' "$stamp" >"$root/.venv/stamp"
    fi
}
