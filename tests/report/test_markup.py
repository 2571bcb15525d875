"""HTML by construction: text stays text, whatever it is."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mars.report.markup import Markup, data, join, script, script_digest, tag
from report.example import parsed

# What a parser of HTML keeps: neither surrogates nor what it replaces by itself.
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1
).filter(str.strip)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(TEXT)
def test_text_is_read_back_as_it_was(text):
    (found,) = parsed(tag("p", text)).children
    assert (found.name, "".join(found.own_text)) == ("p", text)
    assert found.children == []


@given(TEXT)
def test_an_attribute_is_read_back_as_it_was(text):
    (found,) = parsed(tag("p", title=text)).children
    assert found.attributes == {"title": text}


@given(JSON)
def test_json_is_read_back_as_it_was_and_ends_no_element(value):
    made = data("numbers", value)
    (found,) = parsed(made).children
    assert found.attributes == {"type": "application/json", "id": "numbers"}
    assert json.loads("".join(found.own_text)) == value
    assert made.count("<") == 2


def test_markup_inside_markup_is_not_escaped():
    assert tag("p", tag("b", "1 < 2"), " & ", None) == "<p><b>1 &lt; 2</b> &amp; </p>"
    assert join(["<", Markup("<br>")]) == "&lt;<br>"


def test_attributes_are_named_as_in_html():
    made = tag("input", class_="a", aria_label="b", checked=True, disabled=False, id=None)
    assert made == '<input class="a" aria-label="b" checked>'


def test_a_script_keeps_its_meaning_and_its_element():
    made = script('const s = "</script><!--";')
    assert made == '<script>const s = "<\\/script><\\!--";</script>'
    assert script_digest("alert(1)") == "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"
