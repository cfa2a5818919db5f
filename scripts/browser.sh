# Sourced by scripts/test: sees that Chromium is there for the tests of the dashboard; root on Debian gets it installed.

need_browser() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing chromium for the tests of the dashboard …" >&2
        apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >&2
        command -v chromium >/dev/null && return 0
    fi
    echo "error: the tests of the dashboard need Chromium; install it, for example: sudo apt-get install chromium" >&2
    return 2
}
