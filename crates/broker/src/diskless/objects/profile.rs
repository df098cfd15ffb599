//! The file of credentials that Amazon's tools share: sections with a name each, and lines `name = value` in them.

/// Those of a profile. Not to be shown.
#[derive(PartialEq, Eq)]
pub struct Credentials {
    pub key_id: String,
    pub secret: String,
    /// There where they end after a while.
    pub token: Option<String>,
}

/// What the section of this name has, if it is there and has both keys.
pub fn find(text: &str, profile: &str) -> Option<Credentials> {
    let mut is_inside = false;
    let (mut key_id, mut secret, mut token) = (None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_inside = name.trim() == profile;
        } else if is_inside && let Some((name, value)) = line.split_once('=') {
            let value = Some(value.trim().to_owned());
            match name.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => key_id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    Some(Credentials { key_id: key_id?, secret: secret?, token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_has_its_own_lines() {
        let text = "# of two\n[default]\naws_access_key_id = A\naws_secret_access_key=b=c\n\n[ other ]\naws_access_key_id=X\n\
                    aws_secret_access_key = y\naws_session_token = z\nregion = eu-1\n[half]\naws_access_key_id = X\n";
        let of = |name: &str| find(text, name).map(|found| (found.key_id, found.secret, found.token));
        assert_eq!(of("default"), Some(("A".into(), "b=c".into(), None)));
        assert_eq!(of("other"), Some(("X".into(), "y".into(), Some("z".into()))));
        assert_eq!((of("half"), of("none")), (None, None));
    }
}
