"""How Sphinx renders the course; `tools/build_site.py` calls it. No page asks another host for anything."""

from smallfiles import __version__

project = "Small Files, Big Machines"
author = "Small Files, Big Machines contributors"
copyright = author
release = __version__

root_doc = "docs/index"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["**/.ipynb_checkpoints"]

# The notebooks are executed before; a widget would need a script of another host.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, object] = {}
nb_remove_code_outputs = False
nb_merge_streams = True
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
myst_heading_slug_func = "build_site.jupyter_anchor"
myst_links_external_new_tab = False
suppress_warnings = ["ref.python"]  # `bytes` is a builtin, and the name of two fields

autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"

html_theme = "furo"
html_title = project
html_static_path = ["static"]  # beside this file
html_css_files = ["course.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}


def reachable(app, pagename, templatename, context, doctree):  # noqa: ANN001, ANN201
    """Let the keyboard scroll long code, and give the captions of the menu a level, for those who listen."""
    context["body"] = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    menu = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = menu.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app):  # noqa: ANN001, ANN201
    """Sphinx calls this."""
    app.connect("html-page-context", reachable, priority=900)  # after the theme's own
