# Comments of the tree are `//`. Doxygen reads `///`, and `///<` behind a declaration. A heading
# (`// ---- name`) belongs to no declaration, and `<name>` is no HTML.
/^[[:space:]]*\/\/ -{2,}/ s#.*##
/^[[:space:]]*\/\/([[:space:]]|$)/ {
  /`/! s#</?[A-Za-z]#\\&#g
  /`/ s#([( ])(</?[A-Za-z])#\1\\\2#g
  s#//#///#
  b
}
s#([;,{][[:space:]]+)//[[:space:]]#\1///< #
