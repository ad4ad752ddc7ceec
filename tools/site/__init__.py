"""The documentation as a site that is read without a network: `python3 dev.py docs`.

The pages are those of the repository, which a code host shows as well. They are copied to where
zensical finds them, in the same tree, so that every link between them stays as it is. The index,
`docs/README.md`, is the navigation: a page that is listed there is in the site.
"""
