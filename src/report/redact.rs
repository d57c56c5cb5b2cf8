//! Secrets stay out of files that people attach to pull requests.

use super::shape::Manifest;

const HIDDEN: &str = "(hidden)";

/// Names of headers, in lower case, whose values are secrets.
const SECRET: [&str; 5] = ["authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"];

/// The manifest without the values of secret headers, in the command line and in the specification.
pub(super) fn redacted(mut manifest: Manifest) -> Manifest {
    for (name, value) in &mut manifest.spec.request.headers {
        if is_secret(name) {
            HIDDEN.clone_into(value);
        }
    }
    for argument in &mut manifest.argv {
        if let Some(kept) = secret_header(argument) {
            *argument = format!("{}{HIDDEN}", &argument[..kept]);
        }
    }
    manifest
}

fn is_secret(header: &str) -> bool {
    SECRET.contains(&header.to_ascii_lowercase().as_str())
}

/// Where the value begins in `Name: value`, `Name=value` or `--header=Name: value`, when the name is a secret one.
fn secret_header(argument: &str) -> Option<usize> {
    let starts = std::iter::once(0).chain(argument.match_indices('=').map(|(at, _)| at + 1));
    starts.into_iter().find_map(|start| {
        let name_end = start + argument[start..].find([':', '='])?;
        is_secret(argument[start..name_end].trim()).then_some(name_end + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_headers_are_found_in_every_spelling() {
        for argument in ["Authorization: Bearer x", "--header=authorization=Bearer x", "X-API-Key:x"] {
            let kept = secret_header(argument).unwrap();
            assert!(!argument[..kept].ends_with('x'), "{argument}");
        }
        for argument in ["--header", "X-Tenant: a", "--set", "workload.groups=16", "http://h:1/?a=b"] {
            assert_eq!(secret_header(argument), None, "{argument}");
        }
    }
}
