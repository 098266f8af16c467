#!/bin/sh
# python.sh VERSION: print a Python of that version, installed by uv if there's none; or fail.
for candidate in "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
  if "$candidate" -c '' 2>/dev/null; then
    command -v "$candidate"
    exit
  fi
done
"$UV" python install --quiet "$1" 2>/dev/null && "$UV" python find --managed-python "$1"
