//! The packages of Debian and Ubuntu with a library, by Debian's rule: a package's name is its library's name with the version behind `.so.`
//! (Debian Policy, "Run-time shared libraries").

/// Packages with other names.
const OTHERS: [(&str, &str); 7] = [
    ("libGLdispatch.so.0", "libglvnd0"),
    ("libdl.so.2", "libc6"),
    ("libm.so.6", "libc6"),
    ("libpthread.so.0", "libc6"),
    ("librt.so.1", "libc6"),
    ("libxml2.so.2", "libxml2"),
    ("libz.so.1", "zlib1g"),
];

/// Returns the commands that install missing libraries.
pub(crate) fn remedy(libraries: &[String]) -> String {
    let (of_nvidia, others): (Vec<_>, Vec<_>) = libraries.iter().partition(|name| name.contains("nvidia"));
    let mut packages: Vec<String> = others.iter().filter_map(|name| package(name)).collect();
    packages.sort();
    packages.dedup();
    let unknown: Vec<&str> =
        others.iter().filter(|name| package(name).is_none()).map(|name| name.as_str()).collect();
    let mut ways = Vec::new();
    if !packages.is_empty() {
        let list = packages.join(" ");
        ways.push(format!(
            "sudo apt-get install {list} (other systems: the packages that have these libraries)"
        ));
    }
    if !unknown.is_empty() {
        ways.push(format!("install the packages that have {}", unknown.join(", ")));
    }
    if !of_nvidia.is_empty() {
        ways.push(
            "reinstall NVIDIA's driver, whose libraries belong together (in a container, let the NVIDIA container toolkit pass on `graphics`)"
                .to_owned(),
        );
    }
    ways.join("; ")
}

/// Returns the name of a library's package.
fn package(library: &str) -> Option<String> {
    if let Some((_, package)) = OTHERS.iter().find(|(name, _)| *name == library) {
        return Some((*package).to_owned());
    }
    if library.starts_with("libgallium-") {
        return Some("mesa-libgallium".to_owned());
    }
    if let Some(rest) = library.strip_prefix("libLLVM") {
        let version = rest.split(|c: char| !c.is_ascii_digit()).find(|number| !number.is_empty());
        return version.map(|version| format!("libllvm{version}"));
    }
    let (name, version) = library.split_once(".so.")?;
    let name = name.to_ascii_lowercase().replace('_', "-");
    let dash = if name.ends_with(|c: char| c.is_ascii_digit()) { "-" } else { "" };
    let package = format!("{name}{dash}{version}");
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    package.chars().all(is_of_a_name).then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_called_like_their_libraries() {
        for (library, expected) in [
            ("libX11.so.6", "libx11-6"),
            ("libXext.so.6", "libxext6"),
            ("libEGL.so.1", "libegl1"),
            ("libGL.so.1", "libgl1"),
            ("libGLdispatch.so.0", "libglvnd0"),
            ("libxcb.so.1", "libxcb1"),
            ("libxcb-dri3.so.0", "libxcb-dri3-0"),
            ("libX11-xcb.so.1", "libx11-xcb1"),
            ("libwayland-client.so.0", "libwayland-client0"),
            ("libdrm_amdgpu.so.1", "libdrm-amdgpu1"),
            ("libLLVM.so.19.1", "libllvm19"),
            ("libLLVM-15.so.1", "libllvm15"),
            ("libstdc++.so.6", "libstdc++6"),
            ("libgcc_s.so.1", "libgcc-s1"),
            ("libz.so.1", "zlib1g"),
            ("libgallium-25.0.7-2.so", "mesa-libgallium"),
        ] {
            assert_eq!(package(library).as_deref(), Some(expected), "{library}");
        }
        for library in ["libx.so", "lib;x.so.1", "lib x.so.1", ""] {
            assert_eq!(package(library), None, "{library}");
        }
    }

    #[test]
    fn the_remedy_names_packages_where_there_are_some() {
        let said = |names: &[&str]| remedy(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert!(
            said(&["libXext.so.6", "libX11.so.6"]).starts_with("sudo apt-get install libx11-6 libxext6 (")
        );
        assert_eq!(said(&["libx.so"]), "install the packages that have libx.so");
        let both = said(&["libX11.so.6", "libnvidia-glcore.so.580.95.05"]);
        assert!(both.contains("libx11-6 ") && both.contains("; reinstall NVIDIA's driver"), "{both}");
    }
}
