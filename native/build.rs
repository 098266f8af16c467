//! Linker arguments of a module that Python loads, which macOS needs.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
