//! How ranks find each other and become a mesh of links.
