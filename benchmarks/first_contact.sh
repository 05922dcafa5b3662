#!/usr/bin/env bash
# First contact with a GPU: everything that only a real card can tell, in ten minutes, without a network.
#
#     bash benchmarks/first_contact.sh OUT
#     python -m benchmarks.first_contact_report OUT
#
# OUT gets at most 8 files of at most 2 MB each. FIRST_CONTACT_S: seconds in all (570). A folder benchmarks/wheels, where
# there is one, is installed into an environment of its own first. A part that fails or takes too long loses itself only.
set -u
out=$(mkdir -p "${1:?usage: first_contact.sh OUT}" && cd "$1" && pwd) || exit 2
cd "$(dirname "$0")/.." || exit 2
total=${FIRST_CONTACT_S:-570}
work=$(mktemp -d -t first-contact.XXXXXX) && trap 'rm -rf "$work"' EXIT
export VITPROF_HOME=$work/home OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
: >"$out/log.txt"
SECONDS=0

# part NAME UNTIL FILE COMMAND...: FILE gets standard output, log.txt the rest. What one leaves of its time is the next
# one's; LEFT in COMMAND becomes the seconds that it has, less 8 to end in.
part() {
  local name=$1 left=$(($2 * total / 570 - SECONDS - 8)) file=$3 began=$SECONDS status=124
  shift 3
  echo "== $name ($left s) ==" | tee -a "$out/log.txt"
  # Ctrl-C first, so that what was measured until then is kept
  if [ "$left" -gt 1 ]; then timeout -s INT -k 8 "$left" "${@/#LEFT/$((left - 8))}" >>"$file" 2>>"$out/log.txt"; status=$?; fi
  echo "== $name: exit status $status, $((SECONDS - began)) s ==" | tee -a "$out/log.txt"
}

# PyTorch may be in an environment itself, whose packages another one does not see: its folders are named in a .pth.
install() {
  python -m venv --system-site-packages "$work/venv" || return
  python -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
    >"$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth" &&
    "$work/venv/bin/pip" install -q --no-index --no-deps --no-compile benchmarks/wheels/*.whl && touch "$work/installed"
}
export -f install
export work
if ls benchmarks/wheels/*.whl >/dev/null 2>&1; then
  part install 100 "$out/log.txt" bash -c install
  [ -e "$work/installed" ] && export PATH=$work/venv/bin:$PATH
fi
py=$(command -v python || command -v python3)
now=$((SECONDS * 570 / total)) # of 570
part nvidia-smi $((now + 20)) "$out/nvidia-smi.txt" nvidia-smi -q
part doctor $((now + 40)) "$out/doctor.json" "$py" -m vitprof doctor --json
part probe $((now + 115)) "$out/log.txt" "$py" -m benchmarks.probe "$out/probe.json" --seconds $((40 * total / 570))
part watch 290 "$out/log.txt" "$py" -m benchmarks.watch_matrix "$out/watch.json" --seconds LEFT
part selftest 440 "$out/selftest.json" "$py" -m vitprof selftest --gpu --json
part strategies 500 "$out/log.txt" "$py" -m benchmarks.probe "$out/strategies.json" --only strategies
overhead=("$py" -m benchmarks.overhead --rounds 1 --scale 0.5 --tools bare-again vitprof --only cuda-64 cuda-1000)
part overhead 530 "$out/rows.txt" "${overhead[@]}"
for row in gpu-resident gpu-stream-digits gpu-pinned gpu-stream-photos; do
  part "$row" 570 "$out/rows.txt" "$py" -m benchmarks.loaders --rounds 1 --only "$row"
done
for file in "$out"/*; do [ "$(stat -c %s "$file")" -le 2000000 ] || truncate -s 2000000 "$file"; done
echo "$SECONDS s; python -m benchmarks.first_contact_report $out"
